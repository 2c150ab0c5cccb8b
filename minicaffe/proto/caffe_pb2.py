"""Caffe's messages as protobuf classes. Written by tools/gen_proto.py from proto/caffe.proto; do not edit."""
# ruff: noqa

import base64
import zlib

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

_SERIALIZED = """
c-qB0NpKt4b%TurJ^-=_QWQk3(;AJI@n|H?Xh!1L8G{5Qp$eM;kn%WH>1qN^vPS?K#v)RVli1npEOz2-
r!2=fha6IsT#`!Jr<Aj&%9k8csT|{+5~nKXy!Zb9-M_m*Qk-!r2bGBb|NF~(@4x@nX6O6%!0wp4yVhI7ku!1LqQ7s`-
?^0Asb65Jjh?g9+Bb(*Zjr^hc0V7v61x%Gh-wl2pCY`wL0}6kHke{}<VIpWawoUUlAV2XFtB>#d{j0rvAKQA-rJw#W3owOi37Vk+0VzlmU!2knE3>(6v
dUO#opb`&$%sESz?U4%FhE-
`rgWIchk4M9iL_Ct~1@~Sq9CQ1n3AsD;+p(N_Ob)vPJhq+g4}djBuqLXd2VO!z<BH{i_j{D4LULAGYcpn{WY$k!L0}<g)U>go0c~oEDFt!Oot!WA)(h*
qLK&x96A>egHatZk5ejgO1a+x^(#DdSch?jV=B6qbyUiCJl3B_N|FE!kGu~Cv78@dxOpO%oo-OseuPMuN-9iZUwtMP}qh&7*3H)F@RlSDf($31H_>zk-
NwicAZhjGIq?)vjcO~r5(%7<aD6V#GF{LXQa=vvKZ{Kg<ZLGjCHM@>7HQ^b{*eYayMC;FUX0UoQZl)<Qs@F*nGZAgU%^~{D;z;Ea|R&jU|Tr=9nXA;hv
^IHL!g>-Y&J;$ecavIgrEU;4B?%&*GTT4+!TpXLH)Ka+gn-
7f}gKhB7NPnTMh&CV7Of5|{WNIDialO3=c82$zqJ)*4!!0IBaY26!7;MjyC@7FoFWs=5;ice`l!H}|d1vnmV(W}EMgjQ+I8Z)bEpayNGdY1A=a@aDK^)
^D+l50tUFR=Zi=Y-
_Iozq3ZESuM9(<?RyOsc%Nv;v>7)Q~7I^#V0R@V!!Ljjx&I>4JL^1=VoupHyuTMgIIx$%MJ10=ApY2kV^5sWe$k@<bd&{OMFKIa%^rqG)H4DDiZ6_H}B
>ivFvkmWSaxv-+?pg1A`%st}8eS?D+P!7+-_o>vN9^HKSb9-
(eZG9nrvh01at2kAK&<+8}V?M`63vEIcl0QT>0?Y_a9^o~sA}3QtBRFvh@|2r7aknONfqwL~QwP>T%^#D9rgo@IH{0NMa`o)leV^E<$BMsLJ%gAHAKJc
P?a$VuP=$agf`yyQgSfT7c~J1+<)DdfaGv)?yCNa7^$bLboZ0HdEch10hNAo=oXYFS~K1Cn+I@l8G>$Bie}aBP3c%4caQcpk<Bb2#32Ciw-
q=d)~4HX6f`wQC>d7ikw4Sk~<zk*%rH;scf*6Fxb^FA*`XDZ~t5Tl_}OU5`C(Y{8~eUF*3G++cU}Ik}rFY>9B&arz*N0F%ymoL^QKhIeFS4!Ta?7+WBY
SD-IO40eYty5uy5xNiOo3Bt2}LFh5STWmp6TL7$*JUbG=FFnty+e*Vz3`~<J)ZGHv;m&#P_)XkkX})bPyVs7E-PakT?ec-
=X{$2_>TJcOoVg2&7_>tE0&O@x8BI}WE|09eX%DW_m&}Rn3=9$u7fCooEB6!vQ^%#3BybxBug6-
Ci$LH+*XqF&dYQyR;;!}Pod>yB*|NAi_QW=OV)6VHWou_y#)O$b?sD?K%9-OXUKQkMF0FLBi)(D5)3b-h-pK6Qa3{w3tF#(21aKJMGlOoxYjTph!td~!
_RUHD8lCOtac2_{j|gBry-}_enjbcr^>!V$n;P}U;_AIltH<x$e)tgNL`q)Nd-
>}e3E1%v4#Gw84Z=2I>oQxSC)GHxL4b^`?zCg&Zz@;;QNl0zIDd;Ilg?5Wpn{X<zqnKfWSHZzy$i=cw1URK%%K5C86%Q^C`5l51Q#Hzhj$-
j)5J2Tu<U^F^ai2zHFgG$dteM<Lo_AqXpFDXr&R6d4YuG%OfJddPl}K3gD75PDw5zyy2O|#0&?>#w%OQ%aqtI71L)t9{m4Ps3|N8w3@8ww6_lFwZ6VW(
g~!c8QH$b_X0-+LH?$azgPvlk(k^Im+z0%sY6<<j5tioj^1A`AHVNN|kcjD?WsU|`SBQMPz1P_MzC8v#^aTn0BlJ&X)6R4>0{R-
rmEJ3Go@H=+f7<8#n~?nf#@i2oVHb%h0jU!Mw2#4rzYGX?hGh`VeM?;Nf5#UhrT+mic|ce6>mC`wPJH{I`|dcCiPIN~BuJ)-
GZb149vJpya8}~#KC0VXRLzBs>!~}gPCkDOPHwPyd(i1kyHbBVJ3~H^(gq`~Lq0Nf{76^5V@IfWt84+RsG+$B5JuNI7{Id_yOGSjPY=RijJI6K;x0*7U
74aSN6>}wF#IXT2vHo)BDlP&=R&79`W?1lc7Pkq&I<vtOAr?nh=Lg4LEQmCH`+sefWzz&%$f=_+N+v}J_yj;;BpIy{Sd?^b$bw-
Y!x5?595jboC{O|YZL5MKdc<+Ki)c9f=Qk`y(zsE9R4GMzwC#XV|<82LrMTW3n3CrIMW+_k7c_+OJ^!i*dqYda4PbC59U3lb*KIQ3qx6_Phb~SFdPzE3
?3*FxEyK_TCBwTJs5b}t;3-h?}VQA(&5k>d!H@tcX#ir`x=JW0_CNDTMyY1fx#h%E*`!}fR_S*bsFMB#lAh*^U-+}Ld6pt;-@eG+I@U+mA#HbfMp!w-
|T1DGAcuRsKF?UP6+mj3M)qW*Cp@)$V0fn@Z`zUPG^9_s0JV8qegEe8S;6E8kJ_vht|H;2dS=}@gRiODvj|U5|-
&dm&+W6mZ@&nd`vZTK${=ziSaK&Ox5819?Wf)CJkRee2E~=`5+Ed@eg-uWc8+E_)muJRMV<#`F1q6_xg_A6#!oj?Wo23{V>k%#FI@w6^7yczEg~QsL*q
WpAMa(g}uI0fC0KMhW||H6m4_xMCH)M$v!-
f`%X`u<13L6hqmPqpYQ_Z2Hpjg?q7|B2>+A@`3ZlQWri;%`>xFU*+@v>HmF}UD$+xRI6oH&6Vp$gH$bZ$N{RCGkq~#a8Vzso+boL*G=~z)zYqx#rpX8R
R_HmB9e**rLdDtht*{F^;lz?>{#tm2M|^;fIHa;F&%@Wl#A(VQK5SY29ZOR5m%`X8VYdhHCNPcNlc)dXNSJG&*BkzTX*=emvrjGu0rV^3oo(P4bSL<b=
27ui!$>QsG=yF4*rpVI-w5w&1A2X@9(PRl6yFS=x`o|70PdUP0KXOnC=YxO0c@xP@1z+2>){P;La&d0L-
|9%d@GD4cYJ{GQVr&SzcGvOVu&9F@UqI=|C=*VfZhHRp{2*i|JIBXL9aLbvuwp23>?%VyXwXN9tTuia|JohfA@ckEu#a@-f<4qm+h}3p|`1u!#12l|I-
E+3CyQHdNDZU--ItxgAee4-UUL8Y-
eQPsvPWZBO#rkfkR+H53a~oyYL6UfIh|H?;;^RuP8?b)rTi6@6Ce7<<xX{|Mz^JYqRDliJ|KI!IT^K4`G(T%ZBE^|E@l_yOyJp>mS3A+c?HYD*az$?Ce
pByv7oA*T_~9{?)m@JsLS9GMHQs&I(J>l_4`2eV<t#JxQUj)7S;ELMC1c0|eB>{Se%QT4QPMn(sJ0n0QW|_#9)r4{YuiexLgtviM*@aol9+d1+F&?~xr
ip2nIAU7MQY(^v1YMXPV4Lv1i7FVKYSsGy9sC!6j7j2ICn_Q}5}(7>Ax$hk;O_d!)BGg)$4HuR(xdB2YyZ?g<2(B?pj{DlyKOV~YDf%I=jS=N6$!O9&w
Q^2b0xfNuNN;3N>7n79ZuL02*shRbYJs}V0@yJ|&N6`6bjGx&<qNKpYJVs=!L034n&mU#q+%9gc&sR#@rAl!lr?X|w7b3JIcqgSUxXhC1l(k^fL^oLP9
sN9u0(hFqnY35X;Zdo=UlIM=5tf@_>wvtaYqd*0b`e-
xJKFh94$Wzwyx>`1ge^ubUW6@9zugF1f_}QO!nvcvNP3+ug{_|;Vf{3V63tfG{CI!5yDJFmI;3u}<ylq{Z~`)c;kiuo-;T1}3~T0Nan+eHSK-
JX0b?oWOsb<{#esET2m++!@D+4B9~hht%$p=>j|Fd~6^G(7OOG6Kg7&(=5gEeEeYOzLBwR{Hj-lii*zzp9$xpio(M}7*s8v=Xsq3*4p;CXyax)YUWm`u
EqxJ7Z+43y4{{KgKoMV~YJ;OC(h|JOT*qz(=v1>=|N~&FHfZ83I^wRQ>5IUIe-
3Q91(YIqAq6F@G6hA9=MUj~_`F!IC=4gnX$&T6Cw+yoN$3$~Q)cE)zOZ@Ox5tj9<H7hJ*@4?${89Znnkx{IHe9`%{3d%%QHgO++jAY}jqnv22N<gD2P?
Xp%RLVttgDr*nP~tt>s#HMsr5GQlMKBJ!QD|>IF<Rv>l(Z-gs?}>HEv8r4QrH0pbe{m8o^jR`p-
uD9cC#n$hK@_IVwf#|q_Yg3%Dy?;vj?8Wagi<btUYuNN>{w9dFVSVH^U|K4vSNqlt;DoWBoUTyY*=0uD%K<#<1udgI|CV{QsU7)gQ1kvpq1uyAZ^H{`E
Lpnd#Ys3jr^L&^E>G2G%1(2>SctkX+ipbAmj|9}i%)XVwTrfV@lmjY;f{oas>Bqr0@V$q3XvdPTBejb}xiQ@mpHA$2MEiovr-`w;-
i69F{zg?B;qaiywgIq>cmh%m8zp&=<PLP6ruSKK>{$p%^uNa@MuK45d!02sxhi0i_=*H7@J-
Y(JT_4#7yQDLjnc4?(aZoR}7xk>>~iQT^kLZ2eD?j46cbnPC$jyc4s{sx=lv!XsB=H+*4v+(Fq2{;J<+$z>;z(n7OGcDx2ddTAF@DhCb`Z0bkYN%S1eW
$w~s}?>V<OBX3EV)#Vd5l2J6Q4zZM2G-$Ap*>Y2#^#lClmX9mq_W*MGPG<NFccQd+-
{WJwx~e{UY}R#(?92RwSvjp%80m{w9tl(HP$>l`Hyf#yp&2&<wE3gK7oL13`J%YS%ZP6k6@_CJ^vc)V{(}?s_OmaYa7(QKepQg0A`f2uhV%j@eVmhS0r
^o%UYGPXv%xB_Xd$p0Ym%<DoOQeDAdWrxCUg@H)*pjxRwg8a`p{xD&=td&0y?0Qz^MEaP){pTQ6os5OfAwH~>TEN=FO`=+Pt<XC*inwTQt2Xu?~?!)Vy
CIfzC?V+%Uhj?FIik_b)ja*+WY&PqymH|vxtCcFPT!uxS$yA}cx%b@bG)GfjI%>+mRRYbFd8>fr2(AO1nPUr2%k3xSnrs9XJr&3QcZ6kp?p6#fzJMQgS
1Q|__V<O%i-ypmf`{bYafkN-1`q##de1*%xf%Y?JkzFQ%MjuV1JXRXGMRgwo$Wi%F~A|yG+ga8s%AOlSj-xZ1y@n}$9>&oS-&e(-
ph!*mtgVYRWlDQMGL#d=3Z7b=zk2?H{d?~kuQSM!@KEmRi>Z%-
ga5W7eKnga;_?E$doybdLd2Vl{Z1bAA?n=T2k&7!iawe9HfN;r)yrYb%Z*BP*~CI(7zX9xfyQTGhso9k7P)`MNcc=PDZ&u`O1g$3oL6Lq98Z+?QYi^`0
`@)Z-
EWt54oIU3j@%{DIz}ZIYZYucqjM3y`ubXUp^|V7P_OSx^q9y76M@)kNYAgq5{+kL3x9cPP=}4;tI?7q7$yfmj;RcWu}Efex9Newm5==KiT1*v#dY1_aL
zJ<)fm2pKRS%K`{7(3X9_9a}jfsW&Lr4G|z>NT#4R@(hu_xkPScdTP!yt+PDI0g=@x3uF{J@5j8VFgLP%bGEY_uyCAS--`;f-
gJ~9DsP5y<@(5VZA5PX}f@wsBI%%G7M1YBcG2mmFC@}a)bH+72Pet7-
s04v@nKhP1;f7Ic%+rndO(9|XN2QgK5zBKE{~=op=F))h6WKSsDB}p9fqn;=$QND<yg&EQvUPTM$0Ex(tN#(;GL&la8I}UkG~(7;BxD=}$IFKLa6Q)As
-hdM<5;`9v_uph4GkV~tiQli3rd(&RaE^tOSu!Ew%=&hi(JKk$pF(r>4*Yiv{3vv^uVsLqy=`3f)`*<{ZHso2?c=*;e*~hHf-!Q$-@R{K!zMYy-ceI1v
0IGc?ZK>LHsL<%mjb5KBvX7v05tBw7C8gObZ3nU&i?u-
qMPqbi`boR6r>C^CCcm@H`41mo2;56%Gb*xL<xzWm!DrTOeBPV^tqu3k;x(ed!ik3}!F@bAmlO?MaVNR#toP{6esMC~^Zj;YhefudpRv{9yCwKfG2w-
wO?*R|~~DVP0p{6~TzC{yV@NGopeQFtv`9o$=7blwqGLbcbblB>koJjtil;Q#I6t>J)cXr@MFbKZ~-
ZaKshU@G)zf+g34=m=BUhxH4iqG2a{yt&Y^MV$=%e)-Jp;0zuLlAIIpnzn}*uboIYExrE){<4ep-XF0a)3y+5QdB8myDAFi5l~)dsKh2VHJ@5B{s2Esw
rBc>Y1Rt>Erqi`3E0?jk&3dy|0^1)Gd^bzAcBv_St=K@FydefU&ZU|&0D+9Du&wEE2+yJ~tcMEdpg%T(4<@YpHu0$|pRuAV=9#F#=wC^(GqdCFHI@alm
xt`#f|rGRpE@aEf4kyzuz@nzQ>|*f-
hN_K?!tTvAoX{Z3AtwY=7|%+`?2fJINz#2YNHXz&2pK6>sI~1{YL3P+1A!r#20{B`Ncv*p2TB9VVW9aeTqoXuI57S_1U|sA_#41p#j8dG)u+uX1iRk!4
t9MfJN6chqI#;ud!7$33-CTF8rg_(W{m8StrXF4c+6OE%KUUiHGZAyTlDkEGe-
&utQ^yhomL^8L&zm1N3tPPXd!u&<d+=unn|)ahWn4b8kaW8hgan72eH#mZdPV%JH)hcCQ65^=--
N>w?d7H`qBIopmiSlyMVtv<J7uR}gcJt@Z(N&dx`8-zSb??hTyr#P0Y#us7M7h$nENwu4wQM=y+>9p{khVBDc-V-
5|>%kNtL8kibObKLNgt<cHdIGOSUL+8r?CmOZV<3hW<UCMo$rSKlAMKd>jDFw&g;<NBFnf)OMVUkO${Aqjl9efu2`~r*ks%G@pSX#MtB3SVX+<ou<X%S
G$GwM}BWl&ruULa7ZKQ5EwBLZe_%H?mIW~1CFG~4BNiMxmV3=iYi8S}8>hKpVSLF>a1)x&0<6q-e&^!Y-
yQNfzB@5fmF$W)rZb&ecyouemT9JgxMN2T~_sq_%uXcO#RUvf|)l(Nx+F~PI=uF>4bxkjsuJ+t7Y;S${|3WVF>-Yb~};oYyK-^O1-
F${MB2Yd2~*T}(Ld2WxVJpRa3xbtk;?NPw^3y2j(h!hI*@(B39MA-5yB;=VUP}j9bRHpnw=tpZTCwef!Ko-
$OMQ%V=^od#{t}v~#1x{ZS8A@sqw9_1v5=89@w;i~NS59H<Rs=bM`9t$3<qzrq7GZ10<ZaDl+ank=>Phq&??%iM!&liEH<`>Q_Ein&sG|puICtU^e=ov
TkI3n}&9WkfPXbHk!JG}Ig0^_~3_5YLzRyyaUC3_)k89sJBBOBHmp=jFcq#PnfT9~tV#{qZ#?#*vrRDmud2hUlU$m#Cjm<*UUsdT^9yvL+lFqOSQu~=b
MBi;+>Kka*>n!C?iwYl~ScKWj#S+$X{dt6Ce0aLTawzGYkqy?m*%LgfD(Y9+yu>-
z(Q`hb!>4%{WfZ+6O1fGsoOw=Tl!P_R$V1JW+J)+LmbXnny7a~(rX0I_=Z@~c>mk-#;f3LW{J<4n8y;|goM#%24e0YqCxG}m-NNnfqN60ZWe`g^-
A87pV~)D6@<N-SPM9v(8Ff2x(-
KkK2haB+A%mT96;h}uZf8P;40cjYxBk0vwiwJr1j}+ba&|nt6<Au_RHX*~^`kGU_)VkN<4+6CM&Mf&+0eHtsO1Be#276tlAuMd9<xY83|&ud)@!YHq1N
UWY**xOa>MF<Ot6OGB54L|+>YOS*&B_OfPB}2XOdp(RhsrL+NBDtKSo!Cdv;Vi@bsW$fQs^{+%{U(LZu?@sx`KXZIwdvaf#ZDLak^t3Pmun)>%@X4;3M
KLYN7DRm;t09h4mnP0od8sZlDlL8B=&ORYA*mRVXo1YGq>8GD6Gq**HP8cP>~JKHuu&x(`QRj6%#q278&OXxq0vV}n2X@EN@mkp~b4eN{kV8tqy3}RZ0
KbMcY`zdQprdz39d*&3C=iYP_G@0Wc4Xr)#DFRe6Kr;ZF0k$M<W+mq?VU3(_Ah!-CADg|&&>9Y{Kr-e7rg>fBIbt(3sNSSOLsXYe0-n@;OC;cl`7V-
W31=sJVSoJGpB>=uhIfce8&`LJh<ZwRsb!XQ!*MS1v)(rzfZO%IjI!lfxw&g>ac6{#Jg_j|-
A6wVaY`Sr>~_Bx0mhlEGUQ<Hw<FHcA$U)ZoXqiAT~org`#}jf#QxOcQ_aankjvP}m!6lcu;($nvfO*fA(G0Tl|H_FYIY~z0F#{;*pm3l0J*66ylLtB-
e9?Kl5$ueidR9TJM&jTz9;%ODa*i@cl{ZbqFil70nm@k(x#t6$tFJxdYcH`_gv`LSyGN9{|$}h1=`he&8Tmenw0{`9{p<(yu`x)*4+Sw9^FTWeVNFHzh
2<4sQh(^!H}5OC%+LA{GtxXTUYJlsTTCHl@3_JoQ~wD!uv^-)2obmDiaD(n?6;-l^XYBN7q@LZ06{U6nOO%`sdi9H{D}QF+(+%a?N}>j5irG-
ErcJJ!isN9dzn{0l4xjd03|0#Xp2kSo5cV!+>{{D(zFKi@A50=55R1DRQw;`gY)i`kK2zIS&Z+jg2~(%=%pr-
gxe+Im}(7dieefMOY3gL$_XF8TEId0NtfG_tgO-
im#sVlxtEr_5WO9TIi!kx1?`5TpP1}CotA4Y>%pi?YzoeZiw4aZwp)}LdI%v2mFIYgdn%VeeReFca0@!5PsujUOIVwUtdX5Yp_x~bz-IV%pz;{af+<dr
!BJ1oLpo*qn0`Qach|uUbdDwRFb^-
2}+W+Pgat=^l?g(bH|q?hiZkFPp%byIIEm><)x}w17*f%PAW5=Suwr(QWev|PaB*)@zVyOV*LEc#rW@rYl6?cOiA#pF9xi=%ohW~-
+4Iy65n~4Rh577WvcT1b>5dwsPhigUtd0{{#yB1$Ca1<SjVf!kMvc_>&I8h2fjseRTyHSk9NFvnvZrU73J4Xs3;HB#lQYB>f*1TTo-@zCpd1r{3kek-
<`O5{C6k(-!8dz!naEn<kw$*Fi$V(1{eYG!Wqiv?EZt>!#9q5N7ZlB>Hi#ODeqzR-
0Gl!7B*Vjg^G5SzSy(5xz#Leeh4Nf_B0=(OaBsSDz!=l%ufn9);0@heS-P`f47^M<G5WiD)m-
NyT+rAwe5Oki#+=D>7QbuUC>bN%oa;(=XFXWY1SL~fw(zLnk;Trs~;LP{t6n&rLE0MxmYUH`1JD#P^z?_mRlw59HtDEKHtz@r|-
;F3hj2OrlBgE!sm<6g7p(=`Uz_^U>SzXJSo>6iydFUGnK3NHtQ8FjeX^60s06ygIg}w9@QTg%3=pu-
c+NwMZLJS+13_tAMlK5i=@Mss`aKg!bLC{&sDc7?Q*SNEf*?=42<x(G|J)Fu4y_Rpi!@bz5iHSLbJY6e+ovy8X~V*s%&XFim{X*SL@}Xww$}f*2E8kC*
6V(0ciY?&wHK^u9Rw<CG9meI<taN6Y+zOJwr(rjY_$#t<s;BG621b3%3ikC)!y&)6;UTSbxgTlt=uwpEOIYC-
q8EyL_t8Abu+eD(9V3d^^dX=N%KphDl6RR5Cq}$mvd;Hs^8fL;z9v;1&etFph#{4z9JN)Xk)1s)$!X!DN#x(nyD#azXrrl9oeRq8ZP#?@uw$hEmKIf+^
;UN{YExd8GNP@Rq!!vm{pGk=HsWlTXNjPwOqy`SGK-us>>9376oVQC%vOi@qwScNPA7FRAdqJyYR-
N3<#xocHBEE`p|E0f(r?eeZhs6WzYrzxUMcMFH))bRH=6e`~y3tpQw@3!ew7VV_$E_`XsHm}B!;D2nyHpZ2~3nZY(Uqxdu4SIN|3(;xG)nUrGF4`k~_j
BrxLs;n{mY@l#e$)GDp?p&W`CH!FiWz2-rrpDj80Md>=8wSz`9uxX*C`uo6aYp_Z!oB)F
"""

DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(zlib.decompress(base64.b85decode(_SERIALIZED.replace("\n", ""))))
if DESCRIPTOR is None:  # the pure Python implementation answers with nothing
    DESCRIPTOR = descriptor_pool.Default().FindFileByName("minicaffe/proto/caffe.proto")

for _name, _message in DESCRIPTOR.message_types_by_name.items():
    globals()[_name] = message_factory.GetMessageClass(_message)
for _name, _enum in DESCRIPTOR.enum_types_by_name.items():
    globals()[_name] = EnumTypeWrapper(_enum)
    globals().update((_value.name, _value.number) for _value in _enum.values)
