"""Caffe's messages as protobuf classes. Written by tools/gen_proto.py from proto/caffe.proto; do not edit."""
# ruff: noqa

import base64
import zlib

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

_SERIALIZED = """
c-qB0NpKt4b%TurJ^-=_E`q3aTBFf29*v}tW+aZsV~~I(RAHe3kn%WH>1qN^vPS?K#v)RVlh}@9JByt-N#&H}nx!g-RK=I1QuZn3?5Xl4hg2%ZIJY=eI
p@9i|L^|Y4U*!FQ#q(a{Quuy-h2Q3w>CT1v-@`2+}*X_8VsGW^A`Pmi~i1~+)n*GORaaEo#wtduyXS(*0Fo}$mQ7e*m_ip=>Hty-J1k9$71~nc1Nx!)*
`oai!9mRH~W37JIY68;{u!6x9q+BaXu!SG?qB9JLCO)+-r$<%(0nIz)DeEiCXO4-TaK(a)l*ExU2juK&9_4-Eud5%iHl8mhL!{ovvljd`W<g5VX>P)23
vH{tlaWPqb~d$IcK}+JUAK9Xz}e4b{IIVTqzSp7da=-mwW6fEamZLPIVq4@@Y?WyERm_!;c%nmbk(4v(EV#&)}oIpznT<L6e`tkrKj9jil!Pp&0)&F;w
3{~*dTHEX<S4$Yo5wuU%!AO56mq;hYtnXdW58X`6DAm@~WY~QJ1mj?>lu=|4vk|_qT3oJ!H4P<~gG$nEu*xar&Y+J^T*?x9l4m-4CxtW{}^ckCD3-*lk
SyUE-JvOl`cb2h^wKLf>?EbFfJ4@~cOY;Rek&{zV&xw2;F$SB@cWBUAWsv_+dV?k1wXd?oVBZ{Z<jmdG6sS#XUyHX&%@#6e*Ln`*a5*?j2ivnaX7mHXI
nCLabgkT_6Xr!!LX)A)N=@dWXo^W5;j6?Y{`(FfgPIbw@E^kEqoXwkRy#oI`-}nJhL+I-E}=!{?!Kz-M8e%F+P#f^tNpAB1A*CQyF;Tl>GIndU5nhwEh
CNE<_q2&7tQ)jmhpiyHq&f1${Q{172tQaS!z_v&1QMK1b6B?Q8xd`?sirFT4C|=i-FkhTC(l*;cWde;`_PTo$yUZ5#JzIVB>N_{I_}N?gXS#yl0tx;yy
WGH0}`J(SRJA84b+gh>MEETJ+63xkoJf+#K3wANaTL412&}h@)!?jsiQrwJpZiVEEe1qe9In*YtZVqqZX&cn_c<&1UiM`c?}B4*V!=ml}n~B`vD|Pnyj
)o$hlLAwc2r&;-WlTVp{*kR)SkG^UoQWCLok0fP81k;}6zZ|XxEpw5$`^K5np7|!SpIc~6_V~+-KSqM1^TmbowW}B6q2plkQx_0{o;UtBexM%iyCJ0HK
1bz;j0{~$36Q^)`Rv#o^K20r4EOS88&LF<YXXLoi*cy!NFIo94Ed|fRsBaEN`_4E&C-;1Y&C5n(Ftm2<!~8t$;ylZ`9VD_fRa$(&(j&qrXZQso=2eB50
c?xk$hm8=$D3QQ=~TyhZUZ;ioqSI2<}zC#+_s$_h$6tGGaBU=)rH|58Jhi$(=$dEh~p*bixGp}X7esNjRCHkUnW6##xDpx26&6jNoos#6_RI10{Erp8F
gD}c#45(@`SpZAUoVS&mO;t>nzQ;&1LuM(X#s*W3*j9@EmP*>Oh?>xs)?^VG)B?$e*VT$H&773eCl#wKwU)Rr-=Sww=B~!r=l5hiK)lLSX8+_>u%}!Qi
!6^KlUfoak6xctS6cSV-Kl-n{)F_bOWym&YF4W>+kpzpQNS49l1>6Ubdo{#QA3+`+4Y9L=SbPIqyY&9%Gsz}Op_9UJb%D1U`kLxunj!+U1X4R}pXQdjs
LUelgA&R?ao-8k-S0^$(?tfkk>wL;^=%|^XdhwY|@y^*+juhZ)B+qWJ*1UZqC7xixb8b<<lJcNUAQGA`SP1w4`7U)Se4r~x0L#s1sTlpIbRzQ^SOFqiq
B*~<+lm)2Z<oPcy)d3miXk_ogF%YewF)(vrz)?ns<ev!9Uk1Si2<zhA2iY{X%n2;pCp^7DXnl<>!*LIc0c?n-gdL6WHTsmQ{k*~E{D{dVS^P=y(R~ob^
Grn&JV_TB^F%;ymc=$Uw_qIn0nz~aw`4zZ5H<r=pg#i&1ZV}NMtxhz^kU(0qfpeM_@hy6!u*?B497uFu~calv^eeqepR)E{(}fh^LhE*fLEJ@Z$wDMbk
{P6eXAoxKHlD|Y<AxsfgbvT1pX2FC$edKG8_VZ4dhDi6*$K-IKDUOasEw6{(s}`2f(oN#FT*4u>smgf6QM71YBkrM03v)SNuQlg-Ge&111mXihkWABiM
;=A9UXxXFPU#LXiZ?G<F6;tHA@qo(#@PT-`@?n~SQM&~ZI=$JNPakHN`xHf#6W-APC4k7uUHCsNvAq;<$grj8%!s(0)N^=^gDffY3{_W;7^I0t=r7Gu|
wx%cQn=#TK03t8MD>8dMJwB!i7Fdl|K#TX%q!&wBESM^-z^hV!fb7mX3!EC<}5W56%UV$ix0Up$C5Ol*m)CV}s9>J`tFvGp7dFX=xy$vq6fY=W~Y*4oc
vB6dV0`M>z+t0Z`6|gqJUh%`qf&SyIu?3jqxznA{OTpnkBKS*wcsa(0NHnAb(6bOC!Gtrt(RW$41GID|@`POiPz|Rd@AqKdWm;#_>%B0Pb$SGLK?TDhp
~c{VB7w`H`k}>2yx)U?r`<Xni1AM7X)hfPys`J${C;QmzPhhLh%HcF`nUCvEf5$Sa^T|Oiv)Nv09dCXK2+@6{XHL@haprv!6AMM1EAf*7gyQqC<Iu>A^
y$2&lXV`+CvRSS#(UWmsMCX%D*mw_dy=Q4TdLAo^~<?97b*OK|X49hms+mhp16$)O={|Sv`>I>KPA0Xsyy1{~=+S-gCLkVQ87^cFo6B0|&JE{+<~BBE(
diyx)Vl#nPnV3y3cf#91H2fhzvtP7ST@L=6AA(4A^nl`Y?nM)qFMu{#3b%b^`LdA}dV*&Tbb>F2{Ryx(_<Q5O|@4)F`2Q#7&HcM32-_r>sE44tB7_MfO
6IzQfr=W*ZZ%5!`r65`O79O4sRpxnT_pwj)Tkr3gZ(jY(K@373^#dzP9d0&f!1nwsFt42k7pb+PmB4J|s$@2ziwF4<pz8(p2S95dI8~irQ;sMQp#PTmk
LWF7X0lpQwj%3Gggjc9Id%hKRK_?tr^32~1ukeTu@DYbpR^@s4R+u;qImCx8tG8oGivCI%TP5uF0Nw<qvAgp0zZwa14fJ}$A24ml9Jlw$<sg85ExfaJ9
E0uzAJRN3{(2Z`C6$J-s~y{v!tdMRU9Cf}@6@BV>7L>{;ZrxU+XujXa~$9|!T{yI?;(H<wc(u<<9{=}p$+Ku(QhDs2$=7NvE+^q5MHXm9PqcM5nc@OqX
1r3dHa8R3JS2>e<HN>`1s$Maw6#UhJThVnf<<lT4YDP_&?-;s%x$w$NBI6XV@Y-;OrgeP<`3{CK7s^syJ-jIrKkmaFM`#>Y*2dL;h{}B5m>k9?&~Lh@t
Ha4P2Fj{aqxaGi>4zSkQwjvXu_}!7rdsarpa4NY5+EkwNw03Cnx4pm8}d-QE8KpXchdc}ila`hGCw#{FZMCGfJL`R~80&+U%osO0*mFyuCl@snzar9p*
%X6)Klw=<G<)4#>onWNNujV0&?k_9Eat}{J*ICO?&M!9~SC6=O#M8+|CM6*1ml0pwCEZDWk@JnIXfSR~>f*V$=v@duO+fElIo>3=0%NXwiOZ<i36MviR
Kv+;9AsKpf8r1E3di##2$EHG;spj~!*t=}r>e=XK>yOAcG$!jRD0%JihC2Y`NQ8-f@;VAM@TLQDIa1SoP~gdUmi(6uJ+wvM@1w`tECXt_*_RK&T!`!?>
>jB=`d>v^*3SrF`;MFmVAb{K3Nl9}nSGRtNy_mzf@qA?%=*cmkcablWG28P=#n%>&+GwFQea{h<1|*kBV66*j<R}g71!5hE2ZsHrMRBc*&^o)5pWW`lT
sI4WJz?@TCi!N8?1K^8X1ML_@3zwWc70_3Uj8JoL+kceIu1B{1wsvD8h16%pwrYbOU$E9WP>Vt4I6k$@e+wk;6Re3&zE$#S6y8>9-q<OVCd@tT=OY#7V
ESg|ML%q_&@sQ6l6Dn;q>>c6SA}UEkGpwm8jz0`@@8Fg)*y{wGnEn_~EUELK|%vl@>4DR7%|&ZIgTR_t2`h9E#n4qrkK^?||Zz`RM4_DC>XTJb$Dvh>g
)e`&V^9Fd{3Oy#%xY%ZXQxa5r-L*6g2#c6hzpP&&Us1}HEtNcas+2b$5ul|tbrYJ7TwvG&D>)(&E#c5{2|BskC%QCxrhHC^7?W1e4+qdpx*N)niRJ+mu
wL3KFrRE_ebWq>D59CgxZ^$}CS>5s2;EdQ6MRwBUGmama!vT6W+h%*;GRRjjB1TYzl8;HUbb0<d!m@s~Xo+R)J<ts-g9qIsG78q08UcTRK^e))CLSY*k
rcgoloQTXDQGkWniAWEO1Y@7vxQI}ior))l?n*N6yxKx2*y#@3$2YOMzj2dk`~25wR)|j#q<hW2s`kA?qk5yGtQbKG-@8&ZuZ5U&~Yi&4725rbhg2x+B
1iHcHh%YF0i?-wTI3{>B?7i6n%%~rnq$Ou{gz9c~o3K*8fAeTZ>li=qqqy46DvC_yrij|L<y1{Q+B^?!gJ(g&+p>Z^hZtRL>w>2zWMxwkmEnupSvw(BB
h><RS>(801m@q5!Ksvxa>sd*b5ZN$d@s$w1ztJG8a&5Y$C_TC!lxXGNS;JZ-Zf#VYu;!COfC5dg^(0W|cbcR)#UMXhK#@a`9gFtL51ODQcvmEzG`+&hf
P23ihCJ<8@jU^7-97{#K9?cCkhPw>UwD$(e**<$HYVXM+|X{AYSy~yUd@&WIQ-Mb4f0Y!G*I}Us3*j;`dbBI&@4K~APMI}Sb%kR`i;nAZKa1j2vRjk#3
iM}0YTFCkJkj2qqCiwLAWBg>)P_@SUPG>DvEqp%62mCo$aH$^i7=f54K8*m05CLXF1egsGASqf-CiZ(Sk<y`y7&>5(KydN*;59P4hVUu+MeYZT0mlQaN
K$7*A==RV4IE9PF}_hMSM*zqc{s(O8(@_O<qDWbg7UE0s&70gG+X5jAmFK}eVL`)^-z-HihS^+O1<6y1@uP|lq%C4yQh*3p?e)W?Y)kl2q3RYLSB_TWs
men17~FU-f8{MBWy0<wVHMuUxHUOe8SjqCybx=go%>?^dCf7#^*3!#t;~&HH!AN7P*fsZgvOzrl;)WSbWDCn<8Ndbc=WI!|R<U2f)zULtzmQ@xHngJwF
W^xi(+eXw;ic1DLK>D^;4g42wLIsYZ8l@4DA%hNirD)Rcj%1ez)HRsqQoTn9Ka$L5}vTTjY0*$6CpDvtl}2+R1~wHTUw0YB`H)WA9I?+ck14WUH^56Qd
Z4(|gD9{&IIo`1x0Q~alSrcFkcA;cF3w0Ux7GWR+=({r9<fJCNwxY}t{&63Emm^By)uA=mj`?|@pepjlzml1g{!8XRLW*%CK7Iu@(ysT)@{}iro!2SAD
Uj(IxchlplOh5I#?XZk50Ckz=TvghTDR&(8LYlxUZ-Rn90#i@5q}(lp5&sZ4NDBpCSG{2E5Oo5fu%g+a|1iRGQ{2AGVL^zGWJtb6Pb=R}M!7$E%ZKyxE
NdO2AUF2yPRHu|@@n<(f(_#j*_>r_ebC1#qCV<61J{jsJNLl7qWo@OIw~v|x}&GMb3eo80%0VN`ywZz0@MmYd4rNxJAQlOGRyd)8?MBc28sS<riDU=o}
v@BID&&e+2NnFtUosRAh7hMqoRnPY~5EuF!+NK^Wx=m5p#oO{c(si&!vrAj$V(_5AzU^4L|goEH@=uxddv3YsO2i(u+V5HM2m2b!EmgPj(BtAh2cM-gO
g;X%=6o@8iw#2w2Y_j@D#?YD9%PX`XLKfQf=J<YSpAF!)Gw#x*@pMcpc>1c7v$RhCBKhEZ_L^NsjTAz}MRrInEp%X1U|A)628;(+iI**m<b;|QODejAv
`7oH2eKX=ixb#`}0B1<`||1sb)l&bPROMz$_a%(LTG7f^{WkY?i7He)*(T&!2tleE&A_|X&29G$_Z(ynhC0wd1s(y{7+zC+I-)z*2T*ZLN0MkP0hyr4?
Q2aRbz%H?*1$K>s7hq5Q&*)JJ1(6HkgWfnc?Cdqk!v<(Th8#b=Ov?uaGOd7l2g6)L{40vg1b;L?r^T?bS}N4Exc;+D3kBp~#`zfD(vqTd#9W+IKq&e1D
nNwrJPaR~ExOqm4u*TUvwmJ>Sv=%hAX@EXRUcpr48V(h=@y$0W<UUQf;~FvN{>)hR*UfbM6i1(#sfOxP`E}fvjtu}Ve{+(c&)m=7aByb7K)X^yw0#AA{
1HucY!&kL>13tY91*&qk)Mj$39i)Hp}ox{7dT{=R<F&YN!d-DekIHcW&$7i?W4q#1_-|G3%S#Rxy#-50XZ>GGaWj-y99Bw$!g;)C%U-F1#@ULDEAX$LP
4fAP6RO^}iXpgx%ZYOUz1VIkxNzkB0bpz&#o$(kQo;S00c*&5{v7@ArYII9PP0Qr1%hAF$+x)3GS4m$8|RdZShX+aD8zH%hfusUdx>*g&1UAqG0m#hTL
xfsCoN&B<T@&!R5?hze-GH!^|`Can85@u@4Hu_7$ynW(_%UrDj$>2doS%Yxa<L;h~T%-r2iofPoDRdL$bKpF6<X0={#JuxbGV7@t!`n$@6Tr+(0#0la3
*mY-|ZPp*P&<Nyaxy;~otA^lyqjaEbZEGar3&5=WVxb{V;xVBxO^vZ0MI>lfGa>i-^j%dEgtj!d3B=lLl#1nzR=Hk-Ct|??i>_-9rbj7WV=HJ9@&t!n_
(!XwS1akWP8Kn4y2m|RJj7&oJQv$VZdhVTirt1C8hbo=E#a5JDsc?Z&kZ~YOiqz3tlGgg(DKD)%5coR4Lxb>5nESyH}_eV!Wb;a&s^BO7QEEAB&V+lKF
?ieXL%ggwZu@yjm_a6+!9|w%~iJ21H?HyAK`r;JBGQ}cSd8o?f1amV5=gYz=hflV#yr7Fm`sFL#m^3hoX%+FfgybWBF@nYAnrh!%wzECwt>$$`cHoF9V
!t)Jl&Ft@3s$_i2{Gd#D!O-0&qI9D9q;z{_Oz1|Wn<F0JsV?VWr0Ecp2a7V%Zx=&!M~a_dB};uX02-u=@epp<9StAxs+xJ<mjpi+NaCdWqv%-odA-#E>
Bd9%=Hm0Kn59`Z9hj9+8S!-^X&dIbcn4?|Q>n|V@b6phm73)RgE)};L?#_~s|;sma9<cRAWJ^A9eRlhze#ZOD6hww(5VDI{pixQ#ajwXx=p2c^KW<Jg}
T4C&&1uqSk=w4AF+y?hv$$Sa#ekJ`j{t}8|xC=PglTW<H4(`fxdo<zkN2bD^V~cK&0>)oJtVlwnP?(p(;`+Zv*y1!K<e4T=*Rh9G=KMnFN2@F+dNAui7
U4xj!a!E^iCQJDFs-mTPG1xmN)i&Z(;SpMMC}Q;9k_{CUSaH31UZ74Mzben8tMNYVXMdFeNAQCBN#L4N%Sf2M$8k#SJ<+fjOG*jss?n_(St{vIq`_UA7
Lv;<OJSgSrNl0fhCh;&ID6Qo4k7poj6(FV=2r|<TrxHwXYwMkvQqepMY?@6#Dl;(Vdb6x4{@spHq~UYscoz@g{!Jo|e`(3RQnqrfYfR<kU(!!wN|4XZ8
Snw>_zEpjof8lshdde0*XNW-k{@SPS+S5ti}c=`zcqq<4lkSnFn2@TjV&UtzNn=Uhk6`GgLi<{gw#^pYrvZLx6XI*n0M+c0+zHE(Jcs?!<XHU{a^9f_E
7?9T1mx&yC=SZ|3JmIpEkmw0V?zyWfOX*f2Z&nuk(;_Gw^zkh&^lHis>Ea7w?neDbY?6}GcZGt*sx?pG2?Ziz>L~$QH-;0C{cE(jmp`y5*2^BKfNj2g6
@5R}CFlP}g%fZmu@$gn)X>n7P8v56dzNq3ijb4jCEi^U*-@3?#zI8z@AFw3GXlaoIEpp|UMK;CIwd6*<)@&7OEpEYfM5ZS<tlq-}Z5S?+X0S%?_`R3C(
O5~ycP)4(>E&akY44(4s=)eVbVaylN3{b_4@w58D38i5qggFfD$=f6Wh>ZLDKs9JsLd$UipFN42qxAVOUm=1A|y`;Gr_NFxzVVDvZJBNIoBv{mI^J<Xb
O!|vjwnamR1h|SG`ikUf~jHlnT5?(}m#9wsp|6;-qyIY8zjuH}7c){U=d27syZza0ey0VO6GKebFDRSizD*OpEa+_;GhXrLxI%E46FSoS^dDoeYB}bNr
)$wI@DhfGP%P24FM5mZZ(BB;qBkq0<Q@+`;4{vpXJGgMk%D+kC(@uS+~fY>Ece9dFVQ)uoewCw1QvS$Sf<3uIZs*~wnmA3gVH2l%_;9U{}l)tw)ro)TV
aktN-5oQwRd_l*ePc1*looR-DA%I0^5$jE&Q^W}Z?0}-e6@yc-bixXg+$tpz-=6-wPEFFUPbjisapVl=YY`Y(%fJ5w0EI!qYYy`QCjeO}@*$R6e!7IzX
ha4iQ>{;pK%crJy@(nQAd7dqZuN07riqD&tuJ3i03#T)O1)_KrL}E05736!Oe}}RRd>PvBvlL}@D++*qWIi|j6iPPvVbI$|;J)WVzs8bsB>8V>EHCh`m
TN|RyVR%@K=$b0jNl~}{<qFLDD>z)I_$|rHvIJhe?{f5Lkxz*ygvDjk>D43K;F7)A5XQQkF~VH3g&bqKNa3jqMTl3%u|_Ah}!h26Ry;_A4|H%;$$;Nrz
Fd(r_evg=Dq12V~QE7xs+?>%VE61nCXraU;J4PYjx16|0UqcujFBwa|izrK4HzDEDi(SQL4O8p)Tg`G0oeS!Bga7p`7l(3H4QXgK{1a>g(%uFq!o`AiV
M1RdbNLO7--;DT=ThQig85z%uIZKmof;Z|<uDMigI7;d$7kaO&S!W?JZ@NjIf$Ib2(_eLFDLD~yk-h4H*fUT%onQEv-eCql+*a0mQ@M}#1^LVo6$3VDq
sX%K!RW>z|ReP3@$Qfsi%J9T2E_tYY7_Hl}|)2A)c&YWDNJ*5^p`*CZb=U%oJI#kj;{|QQ(wNF;kyzp^KnsdjOG>2-97f-G=emJchcIl<6VFP8#%O{m7
Pp!CKd8vx);HMGJocL*kP%(f0<YNAJ!ZpQbU#6sZ+7|~_U*?Mg;qOG8dx`HvOsnd@@G@2X{yOoCC)9}t>bEbQRKKl!?BnuFf9&Jc<45``?e*g;?E~L3x
grd)&__RBJIzNwl#2ALCsd?|>gr$r7<Kj6POhsz`V$`4U;YywzVBAtIR3j8{%@b$JmK3XbMoskKc1zRbRCQUc;O7?b9n#B?cwXky`#Qw+f6U%{FgXOdC
#rqYzMWpu-@D*RJ1Gf9iWYktwv$vLoh_Kr|}pa{TE4psZ}aqlu{V7woyQvbct#3cdLP!kJ}}qQg1f3t2`E2+pbr($j?t76e<>41r3$aY_X(vUZdoaMtu
`MJ2!)=l*O%T^+SWkUq;ipw6#$w7fXd2pMDkrN|n~ra<inJ#YBSA=Qp+2>FafsLaSA(X{g|)@KNKlU{yt$e!?1?unfaxo|J2k#g5P8nab6>8}*8o#=dg
30DT0U!7Z0-kLr&LWwC=SZ>mu=qh8$FXlZk}4|rU(dD84l)p|o5;Q|<vXRBM4R=HNMmJ1a_hD-Qd8fA8D*EAguuvxEHU|ZS(8vC2|r(i0qBJvug%9fU+
$V>TgwO%f2i@A$zRs1k`DlV87fW{B`yyy7fN~yL{(q2<zHcJ>w5kL6YWlFu+tdv{Y3jJ9r1JJ9uaH~*zqMgArJuTOY^{4zydBkt)Nu$(!Qm+)XOQ-s{;
&+pvh~7TM7n%Io-!V~_n8fr&CI9n?Oz*^LGa+YA1Q6vAZtY+Wqbpea;M!11HBCw;ka%?!Og72VjdaLW7sO8}l{u6<n(_So{>1ZaDDiwQn0P*~B%XWqNS
ePkZ^27NOJZ#v`Lc5|C57DjwB90}A3voF`=genaADrE>S&=1^%Xh2YX;nXNi*Q>sb;`E(W(@C-k1Bh0Q!do9HN%|z2o6ebo(j--&MQk1+?qvd7xAUuJU
fRGH^{Ud=99FeQtH&drEa+j?H3CDV73%+WWd>2HV^`<M+L9ovC%HpYd{>l)BUpWa|Ztds1<$tUUZ|pvG0nt1C$ET$^S){CM_djE7Sv%-0wz42R|mPF=8
PJKncey>zeWG3j3No5Uy{GWypdEY<8fV?N(;!eyS#5~)O_Ba_pGMIH~apEu!aaFuYoRDvDwQn<&^OKk2byuzb_32Gm~!D6xkk^4Mgu@THFyd6^)yLld7
0{T!JNM?9w=}WCBnb9d6`Ck@`TsH
"""

DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(zlib.decompress(base64.b85decode(_SERIALIZED.replace("\n", ""))))
if DESCRIPTOR is None:  # the pure Python implementation answers with nothing
    DESCRIPTOR = descriptor_pool.Default().FindFileByName("minicaffe/proto/caffe.proto")

for _name, _message in DESCRIPTOR.message_types_by_name.items():
    globals()[_name] = message_factory.GetMessageClass(_message)
for _name, _enum in DESCRIPTOR.enum_types_by_name.items():
    globals()[_name] = EnumTypeWrapper(_enum)
    globals().update((_value.name, _value.number) for _value in _enum.values)
