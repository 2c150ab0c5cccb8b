"""Caffe's messages as protobuf classes. Written by tools/gen_proto.py from proto/caffe.proto; do not edit."""
# ruff: noqa

import base64
import zlib

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

_SERIALIZED = """
c-qB0NpKt4b%TurJ^-=_E`q3aTBFf29*v}tW+aZsV~~I(RAHe3kn%WH>1qN^vPS?K#v)RVlh{sTJByt-
+bPL4&LM|X#h0W~_9^A;sq!U<R4T_fw>VWf=e_s;@9y6XlH!b0IjBVZ|KDHUd;k5nHapj|`*z#h-
L>8t44tv_7X5vT{?4V`PW?Pft#_TB=Ds<wa`P<Kv3vQ*<=FMudQ^+({~Y1nn*=t;V*LqrN3JK<BDZskEZN>S`+ciB%13460-
M>l?7jVQJ|>$qmN>9G<NbWxYl(Nvv6)Z6N>N;iTI}83{EXXjg(XI~tNbiLrSC4?ayNa;+wmEe?l_a3u4T}CNq~+Jw66oFP00@Z9X9WtXxnO!oguEY15G
13cz7ims(&@Y5=C=7>A_aLV-qd_G4jlWhFn%2m{5?*h|}WnGuYWRcdRZP9y@c4?RFh=%nv}v&#kaotKW7yR)-FsTubbl-
I1mLQIutB)_Bt#nmuc54RPi^{7KtL<=$X3UGs%CL~7tc&iM|qeW!w59w=<X?hhtNrWn93uoV3?kOAV*l*nCRbGy#4Z5cae``Ljx?9h(oW^y{vXKaow*f
Y{+(YF}vv58%|vy64DoyneI_jeuTEV&yj%@^cEPEJKVC-QZ~7;HY@p+RSTgVaOm4VHA*zRD7VeRIT-Gj~_>L2Y9DTD(<iwvaiy)^i|-
%fVSX*q+5PqaP5?Y0k!^YvnGTFfXDKnhf8p)MOrtrkLarzDiu;zwZDts3}1U|1n%XI$CpJwF9KS&luosXc;}=5?W;L?yLTtNVr=?ySK4#wVzdCATZl(c
WCq`U4A>GYmqy-Wu#Hte8HRJqFKMmG72bTGtE|`ywTEL0e)wjrAD>fY?il6aHqZ<W%G~hZr9IWD=a>KF%bJ*OSYXpoUK1bd_On46Tayv;v2*YY+P=L|2
7ZZoq$w|_bjtd+$RT&#vS528jxc%qk%abaZ!<2i@td$_lRYmn?u{|1ON7&VGkG#adgdxqri@DZHw_W7``_1s8BP?HT@pT_}dW;ya&*bX0!NreX9im2Yw
W`OO3+gk`~qfC(Y)YPWQPVAwc2r&;-WlTVp{*kR)SkG^UoQWCLok0fP81k;}6zZ|XxEpw5$`^K5np7|!SpIc~6_V~+-
KSqM1^TmbowW}B6q2plkQx_0{o;UtBexM%iyCJ0HK1bz;j0{~$36Q^)`Rv#o^K20r4EOS88&LF<YXXLoi*cy!NFIo94Ed|fRsBaEN`_4E&C-
;1Y&C5n(Ftm2<!~8t$;ylZ`9VD_fzqI&(rALHM&hQIF%&R_P2CyxDBj>Kg9&c{Jrc)j3xeeT4ck(&8o6Bs0aNBlzAc_E!&S;ch^e+tW$k6O}oSreVKpZ
bYUyK;+Hk)_JX$)}P{4xo`GpZo;7~m~7C#fv}R!E*537|^PGyZL*;VA~D$rI{sg6weTJbU~muCp}XHkaM2N6YSOjL~-
az;m?KsRMPk<WkPug+&ZnA%C7W93KxSC^Q#`*50HGSLsXU*mn8`35N?L9HN!GJ_1w6#g`;-
3kI*nnvaV>;6%sj!V`Ll#6seZ_2%sdxmVeuxIFgQHoIc+{AJ(P&ajLLGlAUY<bRbj#~r*X$kAL{>2w!Y*<8D84~)H`*|FhHjPh4#HDn0jFuZ35-
GJBRBy}IZ!)w|z$N8&twj0NtO+Y*%fVK2`xmIX=xY?+;>ag9^us0G{?{!)|e*4zLhae|X@}l0&U*kx?j)!m%E{d-
cwh3F8*aAJN#(@n2WN39JZ7YAnhZPVd{F0CIH%T(-
EM);IIC=hyOLahoIU3o!a12B%Xbj987;uykBKapm^p`<!0m8a?_dzy|Epr0P_6bjK5L#bj%W&KSV*neXDPcz=e2qTk*M8n$b1GtTNfv)nd~_c~@jUY*3
7({jjCmp;H_Kuhn_Dmr{s3tJ{admhIS88pE6|?-1p>5!Qlq{tWO}jixKSu-QT)-
UHevovEr#Qur&y}A3R)cZ0l%tRLjOU8rTM)4ZosQe!Z#u$V!CUY!@kuKA|G$>RW`eCk3bK7K?45>{S(==JsA#xz6Nro_X?b2864l6^f><}B>%th_5)zp
d16XH>evA7qd(>^0|G9y45GPbi7Wme_(G)g?*WqsbVXJ7$Ov}g+Xvlu#~F{Eo=_w~GL4;q&}#6&uqT7F5?A+8-R7cdCUjg+-
EnpD*<)~Woz2?)c6ZW|`s0}?@`;o-7-
=2yk*VWHy6PP}LcLpIb6`ac%sqfGI?h2Kp2gVpWbQqB5c(s$<w6#BNV@92DOz#_T^J9;pJI#<#o;W1%lq|Q==4V4V{>L3xWR0{5D>craoz_}5Cc4@+aT
zMd#Dd^m_347^}`JJs^*~r0eTx;ZUM0$g4m#L4`PF@00iJ+G`62}fhu5ag1w@`%7N<f*4P3}^4#f8=%wKB9})Z|6<&@}5Q&DA0D2ZeB$#lfH~KEic7T@
7M4qrq0Di-%$ooB*cbV3i^m;E0-#R@4yWj`IA)&?Kfg*v+q57f4O1$5Lfv4R%9EkBw=xHw<4!p7V+5CQI_r8B$gAiMwyi~XKkS!1x9CF~|;fn-
#F#uSnAqpz??f#xZ=V1sHPjHAzVF0vy_~QEZItl@nafrIv_t_#ULwl&f_!b=#>}5Z!7^SXD;C+yXaD(B=lc$|b0f$kWe2_wo?ocx1^AI&Ejhceip49`X
?my!}2(48bqaG5L={=Xr9EO&uZr2p18aSZM_xHs37a^wF<ozDZEtVz?UqF0`AkHcf2Y&GncWP*LCt~=|h3-
_ts%$Ac8rge2$L<J#FNb#2<ozm)vpe==)6a)tc)xOrQ5O|@4)F`2Q#7$xIRzM?`(pSnhECBk`%nBFIzQfr=W*ZZ%5!`r65`O79HIy>P;TH|@YDUPkr3g
Z(jb-acUWfdV!ZFlyst$<0(X=8{YFK4;3Lj2MZ&~X$@2ziwF4<pemN52uIA>ZH~4Lq#RHlHiRE93gb35%1C$lIj%3HLhgYaLd&&yCpc9TQdFF3~S9rt+
D8wO^)%QGnGfbR@9HL;$>g`yPqQ4r(RtdX3fH#3@?5;fhuSLRK1HInx2Ta>B$L)P`IS8O%5ASRp$DlhwL7GR!-v}eE<fkF*YR5LE@cUMHSL@KLoO;wY-
BWx!eCj54D*)U##{qsb3{dVX4*_hb4ez8F|6Ab=Z9uO=zk&QAV7?Q^k~=;?c&P?+z~7!mcripp0lcj8_W#Zl6kxY{BDD1Q_}`s!BIxyof0iwo{l0@*WX
FH;f5-v-
uDOC7r{4X~utjvh**ngm|7H7|Na$^<;;?n+P<`6qB7ynTLoWu0{M+zF+T;T~pm%@}L)#e|xGD$xyGTf9*u){Qpa)lED;@ZQUqD51`1?pm&nwE2LG|GY%
X_n+aXB&F-
Twoh=jyb1N@A%0{b0Tu_m5$gz{`f_zj{}n+a1gClk1<tklQ#$CDjs3g9`u5*tM;0XC&>We~Ym*N2&K3OVAA@3rcuhXL|N<=nTn>a{W3>EJYWIjAQhOW_
e5{g&t5?uxpXwm%^|CHF56*H>_4^U+^Nfoi0o~<Dd8}W4sS6@fWHm{x;cxu%JLfGW6&)s9Sk@`;Mo_rb3sg<|tb1T{ds^Y;?2rN8}qClXVr8y!Lp*9e{
Bp!o)s#9R(VA(*e00sp&o_@MJto{>z3Q+9K~)=<znofLd+#<wGzRB6|tDM}8pvyHS=^83AnHkuw3Ty8c{2=BOmILb;fv9DgH-
#z@VqO7?_2oW~<G0Ukk@q%nGC4~UWi6SEknvHBh1>OOar)pM)3zBXGaZI>#=^_<QYIbVo?li;0{f5AnTL|3f^n<l!!diV5mEDGRhCTG%KK{rUH3V%iP?
?zZ|iUkBxm@eBcdEQ01ZS`oEJh?e1J@SobmAG4sTD-VhoPN7;w*>ukBZxCc2bc6ZTL{}kLBgsuixSON*z9P3vb!q?>$<6~v&Ct)5^w@Cf#Eq)^xuoJ+!
Pz<V{z4Tn5%H)Pl2&~=S=!X!-{?Dzz_sT$>B@rj6N_p9hf&s(jE!kO8eZ5i!42K$TiyS07qm9FZbD8K)-
M)899cMUto*VtSOat5u%+Ih+O+wiKMQ_N`y-NA<IosM||5lGDNL^Kgt%TDf|CF!s9H<?Cu$^X+va=uElQOx{qBu{;s6ID-BS)LzCWL9w<V$^WFPE*))2
5tV5K*9gpH?#I7h_lO|7a{J<Oz&|ld$+xwP59)J<i+$U-
je#jC({B?w7Rb^+1W$Zn8@hyXg(jzjq)tB!)e^x=o$jT<}`Hzuoym^#s%~cd=G=+~6+l5NGsIRkyP#;RXM_ZK&$i5Wg<Fp7yN7oCjjVDI4{DqPh#X+@t
t)#{D3R?)f<$&&Ez|%9%nj+w79@=hB#huV`DS`~M<&Sis!Bg2YhkJJ4(>N}$xvsT`E<@>{_iG;d4$Dn()ZAlnik|XVw|=Zwhj6zRt=!R9;KUd#oni0`F
oOTz)uQ?XwmjW06TAyS4CvpCv!$v2KDZF@LI@pH+-_h!GLN9YCl1M_4Lm2vqx|szR(oa*K?KOV#NU|2-
q4v0<UP7WTN@8S38Ysf3pRRIL_ftVHXBlxg0C1nd$b<`kUSAULl1ceR3BHWik1WKet`%R+ZP&=uSF<GJSK~KhcVee%K<4p+1v+g#_9v3SQLkyyZibH9@
bkW8of4KEIlf0Ra!2sG|8<O**sS%;3=_tcR}b=yw<(ru!oM_<<~KXIMv@^GkjLmC&aw`PHhw(Jt_eQ;h$T@S`C=!TXCj^Tv`uV9Nl1oPhUUA`$Y{^YrO
At)?(Gd=YxE}pMwRL>M@TIh<W1E2#^R7U?xO>*$@GeqUB^_zvmJu9lD620|p5M7k>|4BeQD=PoXMuKVS?v9%x09IvWbShURbJXcCR_jZ(Ry-
(t+eDTdMjt31?J!0Zr|hs{=f<4K{}DsKP*Petv^Eak3;k`!0ugCAAu^#<sgKZ>AKndYuNm23#z>)2`Ub^JsCc~uhfs^lprq(2%sBTIRw^*@iWxqvTf+H
sV$t!Vg!vExn{KkW$<Cjsa`h_a0024BX&7N|8o?Q1P^A6eY&4)#q?*~zi^jx{z#8W89f@7{;kJ56T&(Aq;`5fAace<^x?8Z>fkzOd1#H=719U9DECG;<
jic_tHx?&RKeuhR@odGV+z16K(&Q|7G#k|VedaAuCpJuSDMlxwmPSoBmJ|KAaoQJk<CaC`wj?2c5nIqmNYnHLSA#Sb2mcgG!G0Sq4g|MZ@J#Bx)-
qIsrGMwTJO7lx^M%4IV5Iy=*Io@3ZUCU3afY1E(lkYh1xFcMrvNg?-jlVw#0sl1mFc`w1@#j9o>T0Sl8CYyO#(V+h+T;G6G^{2iFN)PX*$Ne(>)c3Z-
GD=wKGRwKDv>_AeIO>HofmhxH1%Cuqo!^pjw-
84BL*O7S6i!|BLa;;B353FmW{3X62+K`z<}QZ?AwH5J`4&B`d^;KCYD$)Z^Ybig9ikvN_U%r`>MPl@`gg#FQ3Ek&*<2s=af*|Vy3W9L4&Kf^aIYx8+n0
_CwuSEKsqWm*u(?2R$m71qiKqazLQvkIRMd`YPh4ghC1&ADd})yAUuIe;5a=m7VT&U;_>&#}Im@aMzXyS(FC7&d{ABCC3W7lmHOz~b&qd4)mQ|w*X`Ue
)xg5P7r61-
YARB(@H(72<3~~w73fGL6T%{L*BK~{<4c3);%shoH?1I3SeS6nU7p7U10N%%&<q@!+8f4aF+G)fOb<#ZFiU1P@Bg4lsQDE?q=8S84o{G9vPzeG_G^;F)
!VP2Fn7tcOO(9|XN2QgK5zBKE{~?<XX4ru66FE7&RO1Mrfqom9NC~<H-k-
Z@**d$sBawTY)&B%=8A?ETpQS)F4Y{=z2^j~$@v@;lSc^5cs^~^*JJ#+lEfIxBLxV>gt1>VFgVHGdDyn{srQ8Wn+uv-
|i(JKk$pF(r>4*Yiv`|zy^uR8$qy=`34==!;`k&FG5(*6$!Uw%^Y%tktl7|h@fDAc)dYNnw3S`;`<{b<(2=T8dG86pK{G1lU#%ifh)8hKiGA$Hle;Mav
cuPw@r6cCzqyj=o&6WTW!m}$BE?abSE*uQvaKHS#pJnloZ-HpFk5zquEikMu_N7~FKA6`4%nA1Bq$@o_Sy=<Zvkt-Tp~wyBghSyPz04MPNrcUF0^qgkD
lasMUM&;>g?XJ}M+76X`tJjCOo<hq$Amjlc18me6Nwd7=r+sn`1(uh9p^)Dr{7Q$s#Dxmo$lP$zZYc-
;W#WN=VLB6x2<9#T^}TkaAm}Jy1qFYSZ%3a#i$j`tzCFy1cIb9K8`VOwaf=5boIX(xrE)@<4ep+XF0a)3y+5QdB8myDAFinmDdxHKh2VHJ@5B{s3TZ(r
Bc>Y1Rt>EhSRYqSC_Gwje4V20^1+cem6?BR;eL<t=K@FydefU&c&M32Z4+Uvdzh00MDWl)<Xrf-
y0dh2NTwPoA}g~&sgUb^GsA=^sl7Y^7LqYjb*{?<$-*+3})``r%npv->NumY@odMRI^&Ix1Jc4J22lINc~;kgj_Rx^TY|^{n&M9oNd-
0wa^IUX1UDEb!&m(exr1t9BgYO;tRm6{9>UYPvSA*W11RcJ&H)su4Y2+_368+A_#41ZWD;L*(epu8?AD^22aF-
0~TG^988Z=yvA10B;;ueyYP=zN3T{=u}&5-8oI|lTjVvz!VlNQc99#FSZHFmVTZ;Z4@pb-Ww1&d1N3tPPXd!u&<bmDunn|)ahWn4b8kaW8hganeY~6dE
K6ZzmE&hF>|P6A>RXc2*94#EuCuc|I_p|uDC5TFa1U;YQYLeit@HqK&dx`8-
^Y$&?)9C~*lw#H*c)tB#1pts+d(Xu!xzTRj&n%WG44>bF$V@_>vt@*GN#7T95?)AOLVd~PNqD;(D^dJiAJsTxX>zZmvWzGDZGdNQkok|O2M(W_zb*EW^
VvOnB>w5f7;%;htGn_FR+MGOQXNW(!N_Kf)%g8-S_UF76GL^<G)I%42sLd%LXd-
$7OPSM8M2Vx%`dOtd}<njaIo;;_e}p;bHt5V;)xAaM3FuXcY`mm2Boop;0tSpD$E5D_CjvqZrE{nP3yR&XFUobM)kk<JR&jREnRLN)O?UHo@LiQic+tl
#M2g37$o{Ml&Dh8m%z)%z~GOOLVVP5N?BeuVfa4cfXRVjlYCq814cN_T&?<oP)da+#XGM{E_+L&ap+e#|Oq=K&&%Dq)?cbN5KCz!WO3?A<r~{x{f`h;^
h}YKU!ru(Sr#Fva~KLas#rWPgEdrg=vM&ar&aj@TC?(JIz5ULDZgb+ku;SJr%}oMUW$yKQwz%{*eCf5w?0vHrG_PJ%TZ#o<yJWZp1t>e1$E$DQ1e;_iI
2$9X)u&nG=urhY_}NM5f;@mK8C45?C@1=1ed_w8^`t(20}vJ(j|pLw+N8T>JVFd4`jo{0RuhOQC-
s6x}JQZ5xd7q&T0_a_!h`INroB+SAhdMxm<KTDq1;PEPGhXIKHL{mdSq@3trP4K(X@mU5>>g^y1x!tCW@2`jw*BEm8Xo-VT-N_uB#gSBpU1&{g_^($;v
;+*T~IYsF3Y2HB@MK6gjT`d;QN2f8qgf+~_L(QAoh3a&Mw~ax%bVnkl9J_P-w(h{|A=X>s<>G<-
z$IQW9&mu1V;YVP=<~i#08u*Ka_%3Xqa?Ux5KB1SM`pWi4m+;$LYtsYm@e2Ebvtp>5>ea-&-
WrBgPn0dq)<`Z&V(N_*h!V%`X9vEd@vIcEX%>r+41mJU}<qveU<UAAAM29ZyLQ8e_Cj42EJgC4Sm6aT0US&jM35}30maJF^g=9p=-
&Fdac<i)LPtv?TGwMZdkpCY1c4ZB+X#u+wprZd!w;FkndXXOwvoeO4Hs&yHtVo$LNZ1&yH#bo*tA8P*EP0TSl{5s8pm~waQkotx{+_E>W9Ns1=RPLJ>@
?HI|g;Lq$lQ5N3j3)pDaz2W3Y?lXI?7+AI}XpwSc>rDh9Y%Pj3b1YGq>8GD6Gq){sH%1al5JKNSl&x(`QRj6%zq29cwCG?*}*<2v+G{7B{%Z9a<hV?}?
Sh0eIgqRki=JIiOKV_}SbSr<?o;g9~xjPvKP3HJV18Yxwpa4}2&<wz4fGtUz*_U&du!c@2kXr|nkIe3PU=0RVAQ|%k)4VS69I+`HRCl~dL;NnC1U#wxm
Po)8^Iagz63$Nc!v5&FnjN5a!#hN#jjKC9L_H<E)FMl|;W!uhS?|ja!0q~9McLxC+}u?*zcWNe?pv4zuh0)foUf19d%NF}0OL&79&#}EixOw)5WJ^LPU
iTut_fk={mcX$Vt-
=ssb*v&$YpHgOV7$y*z*WpS?)dL5J}&jeSLiS)bvii0VX@ovjy?(0di6CdDGJMz0PvsB;~L`6t99vcjm8xd{6XmQ<i~}cl|y~QLeU60nm@k(x#t6$tFJ
xdYcGbc`o#8EGb8l|Axl$vh8ZQX4JP!jY<JzkN%AaUSi>Y>#T!9kM5(xo=jxJUoY@iRQ@`|U`WjClV1)AerE^dt*iF&R15k9OB<|UPDk=n;r%4a=~c!&
l?jEYO&>7fN{#yoq-!irHgj}J3cUXm`sdiZH{D}QF+(+%a?O++#v6>8?l|!spXIPt2c7y~0<Kgg4~v&O_=oTbYibHO40y*^yL}3EF?Ww?-
nI;$A{Ps#ZwF4OueuwQ^MFuaU$2A7tlt6QjpweKgWOfBlJ8AXgyoPjbn69{@&68#rMvXzzB*t;@hudda!m@S{`F<1g+7IJQ~H*}6*Jqn17p2%_o%<zo!
7q04RJf_ZGr1V$XE^TfPcn_5aiaq&m2?tuCXKy!Y{wfN++-
KO_n6J2J5#|C)RIIExl$Rr}R2~+S2RH$)(p*Dx9+)x59buWh<ORh061vpio)+WQEELAE!_`cYL98sDgO$<O<@4(~4Y|UaH15P<*_6Qt|QBI_i~|s-
q5m@ZijeA3O+^=;u!^(SIjgDSY;23WcYAM_~13z9SI+`op=G`1-@NTKx+zQ>(95e_uSI`a4jSed(mCY~Lq5F2D3AJYGG1q*6bxA74Ko_(I7QVTgr3<?-
5SKIP%7GrxL5oq4EQ{`HShEr0FgYWbr-%yIqYKg^+gjpD}fU!zdJXmay}FPhBBZ^Ha|mR{0zFaqF(GkhPp`%i8UUq9|0RlZm^y-
f38;w<Gox1O^d)Y8IwbGuN{uF%(gHa4~zg^drv5XGLxV|4UiB>kmUsen;RVaVD>0d3MHrorE>24+5PmyAli+0?G`SY&OxUfCi)KYb>sSZEbAR7SJKlE3
pBC6_enoA@!g8BC=tZdI!v8Z`bgn$D%IjY_##D%AM&vj|YCw4RomCG9LG5|lo_sl86$q^lHKtx`=x1viC{8lMHLD$?{5*4Tt)7%uaqTzf2bd>+qKuHN0
KSF|+tm8%8lBj5~fxm<fxe_SYw9b|b^jiMR#;?_n>o5Ov;<D$)zW?!n-8{!BTz>qv!-Kw<8wR*K&s2DO_!spT`vtzra>3D$6dc6YM(iYIz-
>g3cQ(+a6*C<uCv>ZiV%8#q{a#35%U1Y1`hrv^E!L$H0e#qxN#|KwRwT+VYnm=Z<gs~LygO6RN)QinZxuvbppOrEIy^0IB3biNN89dX|a;;c@%FmQX{I
;GnO3f$rN>RIXs!t|<Ckcw^?NfYbNzML_i4w#lrZ4*PKaa@tPMkIqa^^$;Q4Zmj3Fa`mg2fN64dtt*Ny!8fudag0CRw_X4!P=r_z9&lhjK?Vp1)sBJkN
#_&*y@P=kvbAbFUsrQ)}}Uyi~L#*5;8fJ10|8$gNN7Ez<e%1G%t2YFP>w<}LdjEtH|YBByuFfV(eg2E0Ah47ev+eRZAp<vuQe{$T-
!_)GrY@$e_Qm5RW3{oV5d+I93i@Kpt_@@{`+;F?_c98eAW-0HyheAR(DHjCw>SoQm9@0*bsY;*IB-
}k;?<}X40jF;o&D?$B0wqC%vC)Kga%EQkF%2|DRbp^?tYtw9pAJ4vw@o?&d`5I$|;m~}+sSEaO$NPe+m+lokCf!SZX&A*rM*mubrJ7x5%;!5!xXiOzB9
(}AWOBN&$m1dQ^Co-^t`csSs;vWF3ilX#iOoHQS9mlqLG2?rSWH$Ra-Rn*HiB7&w`1yJH_yXMK%ZX&$qWxIeSZ}tGdhJM{|mV4P^|
"""

DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(zlib.decompress(base64.b85decode(_SERIALIZED.replace("\n", ""))))
if DESCRIPTOR is None:  # the pure Python implementation answers with nothing
    DESCRIPTOR = descriptor_pool.Default().FindFileByName("minicaffe/proto/caffe.proto")

for _name, _message in DESCRIPTOR.message_types_by_name.items():
    globals()[_name] = message_factory.GetMessageClass(_message)
for _name, _enum in DESCRIPTOR.enum_types_by_name.items():
    globals()[_name] = EnumTypeWrapper(_enum)
    globals().update((_value.name, _value.number) for _value in _enum.values)
